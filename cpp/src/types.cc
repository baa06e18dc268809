// Types and operators: their numbers, compared with the bridge's; names; conversions.
#include <rsccl/types.hpp>

#include <array>
#include <memory>
#include <string>

#include "bridge.hpp"

namespace rsccl {

#define RSCCL_SAME(ours, bridge) static_assert(static_cast<int>(ours) == static_cast<int>(ffi::bridge))
RSCCL_SAME(DataType::int8, TypeCode::I8);
RSCCL_SAME(DataType::uint8, TypeCode::U8);
RSCCL_SAME(DataType::int32, TypeCode::I32);
RSCCL_SAME(DataType::uint32, TypeCode::U32);
RSCCL_SAME(DataType::int64, TypeCode::I64);
RSCCL_SAME(DataType::uint64, TypeCode::U64);
RSCCL_SAME(DataType::float16, TypeCode::F16);
RSCCL_SAME(DataType::float32, TypeCode::F32);
RSCCL_SAME(DataType::float64, TypeCode::F64);
RSCCL_SAME(DataType::bfloat16, TypeCode::BF16);
RSCCL_SAME(DataType::float8_e4m3, TypeCode::F8E4M3);
RSCCL_SAME(DataType::float8_e5m2, TypeCode::F8E5M2);
RSCCL_SAME(ReduceOp::sum.code(), OpCode::Sum);
RSCCL_SAME(ReduceOp::prod.code(), OpCode::Prod);
RSCCL_SAME(ReduceOp::min.code(), OpCode::Min);
RSCCL_SAME(ReduceOp::max.code(), OpCode::Max);
RSCCL_SAME(ReduceOp::avg.code(), OpCode::Avg);
RSCCL_SAME(ReduceOp::band.code(), OpCode::BitAnd);
RSCCL_SAME(ReduceOp::bor.code(), OpCode::BitOr);
RSCCL_SAME(ReduceOp::bxor.code(), OpCode::BitXor);
RSCCL_SAME(detail::premul_sum_code, OpCode::PreMulSum);
RSCCL_SAME(ReduceOp::Scalar::none, ScalarCode::None);
RSCCL_SAME(ReduceOp::Scalar::integer, ScalarCode::Integer);
RSCCL_SAME(ReduceOp::Scalar::natural, ScalarCode::Natural);
RSCCL_SAME(ReduceOp::Scalar::real, ScalarCode::Real);
RSCCL_SAME(detail::Kind::send_recv, CallCode::SendRecv);
#undef RSCCL_SAME

static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2 && sizeof(float8_e4m3) == 1 && sizeof(float8_e5m2) == 1);
static_assert(std::is_trivially_copyable_v<float16> && is_element_v<float16> && is_element_v<float8_e5m2>);
static_assert(is_element_v<std::byte> && is_element_v<long long> && !is_element_v<bool> && !is_element_v<short>);

const char* name_of(DataType type) noexcept {
    constexpr std::size_t known = static_cast<std::size_t>(DataType::float8_e5m2) + 1;
    // Copied because the bridge's strings do not end with a zero byte. Never freed, so that code which runs at the program's end
    // can still use them.
    static const std::array<std::string, known>& names = *[] {
        auto made = std::make_unique<std::array<std::string, known>>();
        for (std::size_t code = 0; code < known; ++code) {
            (*made)[code] = std::string(ffi::type_name(static_cast<std::int32_t>(code)));
        }
        return made.release();
    }();
    const auto code = static_cast<std::size_t>(type);
    return code < known ? names[code].c_str() : "unknown";
}

namespace detail {

std::uint16_t encode(DataType type, float value) noexcept { return ffi::encode(static_cast<std::int32_t>(type), value); }

float decode(DataType type, std::uint16_t bits) noexcept { return ffi::decode(static_cast<std::int32_t>(type), bits); }

} // namespace detail
} // namespace rsccl
