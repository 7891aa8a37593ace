"""The data path: HTTP/1.1 in, HTTP/1.1 out, and nothing of a request lost on the way."""
