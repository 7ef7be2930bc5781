//! The library is never unloaded: its threads run on when Java gives up the class loader that loaded it.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
