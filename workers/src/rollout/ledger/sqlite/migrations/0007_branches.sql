-- Bodies may hold trajectories of several rows (rollout.types.Branch): who does not know them would train on the first alone.
SELECT 1;
