"""No module imports itself, through whatever others; imports for annotations alone count too."""

from graphlib import TopologicalSorter

import grimp


def test_no_modules_import_each_other():
    graph = grimp.build_graph("specprefill_cli", exclude_type_checking_imports=False)
    assert len(graph.modules) > 100
    # Raises CycleError, which names the modules.
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
