"""The reasoning and tool-call formats of models, one small file each."""
