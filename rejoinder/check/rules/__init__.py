"""The rules, as data plus one predicate each."""
