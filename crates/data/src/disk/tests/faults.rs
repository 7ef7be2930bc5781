//! Failing devices, full disks, damage at rest.
