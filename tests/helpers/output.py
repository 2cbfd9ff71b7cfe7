"""What people see: text of the terminal, and text in a plot."""

import xml.etree.ElementTree as ElementTree
from io import StringIO

from rich.console import Console

SVG = "{http://www.w3.org/2000/svg}"


def text_of(renderable):
    """Print to a wide terminal without colours."""
    console = Console(width=300, file=StringIO(), color_system=None)
    console.print(renderable)
    return console.file.getvalue()


def svg_texts(svg):
    return [node.text for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]
