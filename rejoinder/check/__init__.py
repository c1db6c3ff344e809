"""The conformance checker: the contract as rules, run on any server."""
