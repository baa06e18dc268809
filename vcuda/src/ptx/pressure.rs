//! How many registers a kernel needs: what the assembler has counted, or an estimate.

use super::instruction::Program;

/// Estimates the registers a thread from how many virtual registers the text has: some live at the same time, most do not.
pub(super) fn estimate(program: &Program) -> u32 {
    (program.rows / 4).clamp(16, 255).next_multiple_of(8).min(255)
}

/// What a comment `// registers KERNEL sm_80 40 sm_90 38` says of a kernel: architecture and registers, in order.
pub(super) fn counted(text: &str, kernel: &str) -> Vec<(u32, u32)> {
    let of_kernel = |line: &str| -> Option<Vec<(u32, u32)>> {
        let words: Vec<&str> = line.strip_prefix("// registers ")?.split(' ').collect();
        let (name, pairs) = words.split_first()?;
        if *name != kernel {
            return None;
        }
        let pair = |pair: &[&str]| Some((pair.first()?.strip_prefix("sm_")?.parse().ok()?, pair.get(1)?.parse().ok()?));
        pairs.chunks(2).map(pair).collect()
    };
    // `kernels/build` writes them at the end.
    let mut found = text.lines().rev().find_map(of_kernel).unwrap_or_default();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::super::Module;

    #[test]
    fn registers_are_the_assemblers_where_the_text_has_them() {
        let kernels = ".version 8.0\n.target sm_80\n.address_size 64\n.entry a()\n{\nret;\n}\n.entry b()\n{\nret;\n}\n";
        let module = Module::parse(&format!("{kernels}// registers a sm_90 38 sm_80 40\n")).expect("it loads");
        let on = |name: &str, capability| module.function(name).expect("a kernel").registers_on(capability);
        assert_eq!([on("a", (8, 0)), on("a", (8, 9)), on("a", (9, 0)), on("a", (12, 0))], [40, 40, 38, 38]);
        assert_eq!(on("a", (7, 5)), 16, "the estimate: older than all");
        assert_eq!(on("b", (9, 0)), 16, "the estimate: no comment");
    }
}
