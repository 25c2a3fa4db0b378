"""From measurements inside a job to a machine file, and its refinement by records of runs."""
