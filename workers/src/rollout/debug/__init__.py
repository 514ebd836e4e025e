"""The learner under the microscope, on what a run has recorded. Nothing here writes into a run's folder."""
