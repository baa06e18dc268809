//! The constants of the kernels' headers, for tests that compare them with those of the host.

/// Where the kernels' constants stand that the host knows too.
const HEADERS: [&str; 7] = [
    include_str!("../../kernels/abi.h"),
    include_str!("../../kernels/copy.h"),
    include_str!("../../kernels/launch.h"),
    include_str!("../../kernels/lines.h"),
    include_str!("../../kernels/program.h"),
    include_str!("../../kernels/status.h"),
    include_str!("../../kernels/meet.cu"),
];

/// The value of the one constant of this name.
#[track_caller]
pub(in crate::device) fn constant(name: &str) -> u64 {
    let found: Vec<u64> = HEADERS.iter().flat_map(|header| constants(header, name)).collect();
    let [value] = found[..] else { panic!("{name} stands in the headers {} times", found.len()) };
    value
}

/// The values of the constants of this name in a text: `constexpr TYPE NAME = VALUE, NAME = VALUE;`
fn constants(header: &str, name: &str) -> Vec<u64> {
    let lines = header.lines().filter_map(|line| line.strip_prefix("constexpr ")?.split(';').next());
    let declared = lines.flat_map(|line| line.split_once(' ').map_or("", |(_, names)| names).split(','));
    let named = declared.filter_map(|constant| constant.split_once('=')).filter(|(other, _)| other.trim() == name);
    named.map(|(_, value)| value_of(value.trim())).collect()
}

/// A number, or one that is shifted to the left.
fn value_of(text: &str) -> u64 {
    let (number, places) = text.split_once(" << ").unwrap_or((text, "0"));
    let number = number.trim_end_matches('u');
    let value = match number.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => number.parse(),
    };
    value.unwrap_or_else(|_| panic!("{text} is no plain number")) << places.parse::<u32>().expect("a number")
}

#[test]
fn constants_are_found_in_the_text_of_a_header() {
    let header = "constexpr u64 ONE = 1, TWO = 0x2u; // three\nconstexpr u32 SHIFTED = 3u << 4;\nint ONE = 5;\n";
    let of = |name| constants(header, name);
    assert_eq!((of("ONE"), of("TWO"), of("SHIFTED"), of("INT")), (vec![1], vec![2], vec![48], vec![]));
    assert!(std::panic::catch_unwind(|| constant("NO_SUCH_CONSTANT")).is_err());
}
