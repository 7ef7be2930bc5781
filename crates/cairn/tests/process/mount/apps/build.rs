//! Compilers: many files read and written side by side, times that decide what is built again, locks and mappings of
//! linkers and of cargo.
use super::Place;

/// A program of many files, each with a header of its own.
const SOURCES: &str = r##"
mkdir -p src include; n=120; i=0
while [ $i -lt $n ]; do
    echo "int f$i(int x);" > include/f$i.h
    printf '#include <stdio.h>\n#include <stdlib.h>\n#include "f%d.h"\nint f%d(int x) { return x + %d; }\n' $i $i $i > src/f$i.c
    i=$((i + 1))
done
{ echo '#include <stdio.h>'; i=0; while [ $i -lt $n ]; do echo "#include \"f$i.h\""; i=$((i + 1)); done
  echo 'int main(void) { int sum = 0;'; i=0
  while [ $i -lt $n ]; do echo "sum += f$i(1);"; i=$((i + 1)); done
  printf '%s\n' 'printf("%d\n", sum); return 0; }'; } > src/main.c
cat > Makefile <<'END'
SOURCES := $(wildcard src/*.c)
OBJECTS := $(SOURCES:src/%.c=out/%.o)
out/program: $(OBJECTS)
	cc -o $@ $^
out/%.o: src/%.c | out
	cc -g -O1 -Iinclude -MMD -c -o $@ $<
out:
	mkdir out
-include $(OBJECTS:.o=.d)
END
"##;

pub fn with_make(place: &mut Place) {
    place.on_mount(SOURCES);
    place.on_mount("make -j4");
    // 0 + 1 + … + 119, and 1 for each.
    assert_eq!(place.on_mount("out/program").trim(), "7260");
    let again = place.on_mount("make -j4");
    assert!(again.contains("up to date"), "it builds again what did not change: {again}");
    place.on_mount("sleep 0.02; touch include/f7.h");
    let some = place.on_mount("make -j4");
    let compiled = some.lines().filter(|line| line.contains(" -c ")).count();
    assert_eq!(compiled, 2, "one header is used by two files: {some}");
    place.on_mount("make -q && rm -rf out && make -j8 && out/program");
}

const CRATE: &str = r#"
mkdir -p lib/src app/src
cat > Cargo.toml <<'END'
[workspace]
resolver = "2"
members = ["lib", "app"]
END
cat > lib/Cargo.toml <<'END'
[package]
name = "lib"
version = "0.1.0"
edition = "2021"
END
cat > app/Cargo.toml <<'END'
[package]
name = "app"
version = "0.1.0"
edition = "2021"
[dependencies]
lib = { path = "../lib" }
END
i=0; while [ $i -lt 30 ]; do
    echo "pub fn f(x: u64) -> u64 { x + $i }  #[test] fn adds() { assert_eq!(f(1), $((i + 1))); }" > lib/src/m$i.rs
    echo "pub mod m$i;" >> lib/src/lib.rs
    i=$((i + 1))
done
{ echo 'fn main() { let mut sum = 0;'; i=0
  while [ $i -lt 30 ]; do echo "sum += lib::m$i::f(1);"; i=$((i + 1)); done
  echo 'println!("{sum}"); }'; } > app/src/main.rs
"#;

pub fn with_cargo(place: &mut Place) {
    // Its own settings, but the compiler of this machine.
    let home = std::env::var("HOME").unwrap_or_default();
    let cargo = format!(
        "unset CARGO_TARGET_DIR RUSTC_WRAPPER; export RUSTUP_HOME=\"${{RUSTUP_HOME:-{home}/.rustup}}\" \
         CARGO_HOME=\"$LOCAL/cargo\" CARGO_INCREMENTAL=1; cargo"
    );
    place.on_mount(CRATE);
    place.on_mount(&format!("{cargo} build --offline -q -j4"));
    assert_eq!(place.on_mount("target/debug/app").trim(), "465");
    place.on_mount("sleep 0.02; touch lib/src/m3.rs");
    place.on_mount(&format!("{cargo} build --offline -q -j4 && target/debug/app"));
    let tested = place.on_mount(&format!("{cargo} test --offline -j4 2>&1"));
    assert!(tested.contains("30 passed"), "{tested}");
    place.on_mount(&format!("{cargo} clean --offline -q"));
    assert!(!place.dir.join("target/debug").exists());
}
