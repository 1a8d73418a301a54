"""`feddraw doctor`: is this machine fit to train on, how fast is it, and what would a study cost
here.

`machine_checks` looks at folders, disk and versions; `device_trial` is what a process does on a
device under test; `study_start` finds the fastest way to start a study and its cost; `examination`
does all of it within a time.
"""
