"""Work on recordings that is done often: each job a module with its configuration, its tables and `run`."""
