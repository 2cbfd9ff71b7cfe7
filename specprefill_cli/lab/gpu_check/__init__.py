"""`python -m specprefill_cli.lab.gpu_check`: the first checks and measurements on a machine with a GPU."""
