"""Recorders: what is measured beside what every record has, one file each.

recorder            what a recorder is, and the three places where it is called
time_spent          what the workers did with their time
emulated_trainings  how long trainings of a testbed took, and would take on its devices
topology            who was active, and which links were used
positions           where the workers are, if they move
failed_trainings    the workers whose training loss is not finite
energy              joules
privacy             what private training has cost
built_in            all of these, and records that hold their fields
"""

from dystop.recorders.built_in import (
    RECORDERS,
    check_score_name,
    number_fields,
    read_record,
    recorders_of,
)

__all__ = ["RECORDERS", "check_score_name", "number_fields", "read_record", "recorders_of"]
