// The folds with operators on bits, for every type of integers; counts are bytes.

#include "fold.h"
#include "launch.h"

STEPS(fold_and, (bit_fold_step<BitAnd>))
STEPS(fold_or, (bit_fold_step<BitOr>))
STEPS(fold_xor, (bit_fold_step<BitXor>))
