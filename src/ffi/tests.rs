use crate::config::VARIABLES;

#[test]
fn every_variable_has_a_field_in_cpp() {
    let (header, laid) = (include_str!("../../cpp/include/rsccl/config.hpp"), include_str!("../../cpp/src/config.cc"));
    for variable in VARIABLES {
        let name = variable.full_name();
        assert!(laid.contains(&format!("\"{name}\"")), "cpp/src/config.cc does not lay {name}");
        assert!(header.contains(&format!("`{name}`")), "cpp/include/rsccl/config.hpp does not document {name}");
    }
}
