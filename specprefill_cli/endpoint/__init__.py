"""Targets behind an OpenAI-compatible server. The draft runs here, and the server gets the text that it keeps."""
