// Copies of one source to some targets, of any alignment; counts are bytes.

#include "copy.h"
#include "launch.h"

STEPS(copy, copy_step)
