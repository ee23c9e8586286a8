//! Compiles `bpf/*.bpf.c` and generates their skeletons.

fn main() {
    println!("cargo::rerun-if-changed=../../bpf");
}
