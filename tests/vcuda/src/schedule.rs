//! What runs when: hardware queues, resident blocks, time slices between processes, and the report of a deadlock.
