"""Lists and fetches checkpoints of remote stores through fsspec. evalq's programs start this package
as a helper process; see __main__.py. It imports only the package of the store that it uses."""
