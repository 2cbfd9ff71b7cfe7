"""Targets behind an OpenAI-compatible server: the draft chooses here, the text it keeps is sent there."""
