// The folds of one element type, each operator an entry point.
//
// module fold_i8: -DLANE=LaneI8
// module fold_u8: -DLANE=LaneU8
// module fold_i32: -DLANE=LaneI32
// module fold_u32: -DLANE=LaneU32
// module fold_i64: -DLANE=LaneI64
// module fold_u64: -DLANE=LaneU64
// module fold_f16: -DLANE=LaneF16
// module fold_f32: -DLANE=LaneF32
// module fold_f64: -DLANE=LaneF64
// module fold_bf16: -DLANE=LaneBF16
// module fold_f8e4m3: -DLANE=LaneF8E4M3
// module fold_f8e5m2: -DLANE=LaneF8E5M2

#include "fold.h"
#include "launch.h"

STEPS(fold_sum, (fold_step<LANE, Sum>))
STEPS(fold_scaled_sum, (fold_step<LANE, ScaledSum>))
STEPS(fold_prod, (fold_step<LANE, Product>))
STEPS(fold_min, (fold_step<LANE, Least>))
STEPS(fold_max, (fold_step<LANE, Greatest>))
