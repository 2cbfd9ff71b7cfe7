"""The resident session: a server that keeps a pair loaded, and the client that hands commands to it.

`specprefill serve` is two processes on Linux. The *host* listens for commands and forks a process for each, which takes
over the caller's streams, folder and environment, and runs the command as it would run alone; only the models' work is
done by the *engine*, which holds the pair and serves HTTP. `client`, `frames` and `places` import nothing but small
modules of the standard library: they run before every command.
"""
