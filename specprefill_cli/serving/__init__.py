"""The server: it keeps a pair loaded and answers over HTTP, on this user's Unix socket, and where asked on an address."""
