//! What the ciphers of `RSCCL_ENCRYPT` take by themselves: the least that encryption adds to a call.
//!
//! ```text
//! cargo bench --features encrypt,internals --bench ciphers
//! ```
//! GB/s of one thread that encrypts and that decrypts records of one length in place, where they stay in the cache; the
//! best of some rounds. Between two hosts each byte is encrypted at one end and decrypted at the other.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::hint::black_box;

use ring::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rsccl::internals::sys::clock;

/// Bytes of a round.
const BYTES: usize = 16 << 20;
const ROUNDS: u32 = 9;
const TAG_BYTES: usize = 16;

/// GB/s of `work` on records of `bytes`.
fn rate(bytes: usize, mut work: impl FnMut()) -> f64 {
    let records = BYTES / bytes;
    let took = (0..ROUNDS).map(|_| {
        let start = clock::now();
        (0..records).for_each(|_| work());
        clock::now().duration_since(start).as_secs_f64()
    });
    BYTES as f64 / took.fold(f64::MAX, f64::min) / 1e9
}

fn main() {
    println!("cipher              record  encrypt  decrypt (GB/s)");
    for (name, algorithm) in [("AES-128-GCM", &AES_128_GCM), ("ChaCha20-Poly1305", &CHACHA20_POLY1305)] {
        let key = UnboundKey::new(algorithm, &[7; 32][..algorithm.key_len()]).map(LessSafeKey::new);
        let key = key.expect("the key has the cipher's length");
        // One nonce for all: nothing of this is sent.
        let nonce = || Nonce::assume_unique_for_key([0; 12]);
        for bytes in [4 << 10, 16 << 10, 64 << 10] {
            let mut record = vec![1; bytes];
            let encrypts = rate(bytes, || {
                let tag = key.seal_in_place_separate_tag(nonce(), Aad::empty(), &mut record);
                _ = black_box(tag.expect("a record is short"));
            });
            let mut sealed = vec![1; bytes];
            key.seal_in_place_append_tag(nonce(), Aad::empty(), &mut sealed).expect("a record is short");
            let mut record = vec![0; bytes + TAG_BYTES];
            // The copy beside it is what a receiver makes, too.
            let decrypts = rate(bytes, || {
                record.copy_from_slice(&sealed);
                black_box(key.open_in_place(nonce(), Aad::empty(), &mut record).expect("it is what was sealed"));
            });
            println!("{name:<18} {:>4} KiB {encrypts:>8.2} {decrypts:>8.2}", bytes >> 10);
        }
    }
}
