//! Licence expressions that would let a wrong licence in, or keep a good one out, if they were read wrongly.

use super::satisfied;

const ALLOWED: &[&str] = &["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-3-Clause", "Unicode-3.0"];

#[test]
fn one_of_a_choice_is_enough() {
    for expression in ["MIT", "GPL-3.0-only OR MIT", "MIT/Apache-2.0", "MPL-2.0 OR MIT OR Apache-2.0"] {
        assert_eq!(satisfied(expression, ALLOWED), Ok(true), "{expression}");
    }
}

#[test]
fn all_of_a_conjunction_are_needed() {
    assert_eq!(satisfied("MIT AND BSD-3-Clause", ALLOWED), Ok(true));
    assert_eq!(satisfied("MIT AND GPL-3.0-only", ALLOWED), Ok(false));
    assert_eq!(satisfied("(MIT OR Apache-2.0) AND Unicode-3.0", ALLOWED), Ok(true));
    assert_eq!(satisfied("(MIT OR Apache-2.0) AND OpenSSL", ALLOWED), Ok(false));
}

#[test]
fn and_binds_tighter_than_or() {
    assert_eq!(satisfied("MIT OR GPL-3.0-only AND OpenSSL", ALLOWED), Ok(true));
    assert_eq!(satisfied("GPL-3.0-only AND MIT OR OpenSSL", ALLOWED), Ok(false));
}

#[test]
fn an_exception_belongs_to_its_licence() {
    assert_eq!(satisfied("Apache-2.0 WITH LLVM-exception", ALLOWED), Ok(true));
    assert_eq!(satisfied("MIT WITH Classpath-exception-2.0", ALLOWED), Ok(false));
}

#[test]
fn what_is_not_allowed_or_not_an_expression_is_refused() {
    assert_eq!(satisfied("GPL-3.0-only", ALLOWED), Ok(false));
    for expression in ["", "MIT OR", "MIT MIT", "(MIT", "MIT)", "AND MIT", "MIT WITH"] {
        assert!(satisfied(expression, ALLOWED).is_err(), "{expression:?}");
    }
}
