"""The face: a web page and a terminal table that show what a supervisor knows, and pictures of what streams carry."""
