//! A first look at the whole path with threads.
use rsccl::{ReduceOp, local};

#[test]
fn sums_of_many_sizes() {
    for ranks in [1u32, 2, 3, 4, 7, 8] {
        for count in [0usize, 1, 5, 1000, 5000, 100_003, 3_000_001] {
            local::run(ranks, |comm| {
                let n = comm.size() as usize;
                let send: Vec<f32> = (0..count).map(|i| (i % 13) as f32 + comm.rank() as f32).collect();
                let mut recv = vec![0f32; count];
                for _ in 0..3 {
                    comm.all_reduce(&send, &mut recv, ReduceOp::Sum)?;
                }
                let extra = (n * (n - 1) / 2) as f32;
                for (i, value) in recv.iter().enumerate() {
                    assert_eq!(*value, (i % 13) as f32 * n as f32 + extra, "{ranks} ranks, element {i} of {count}");
                }
                let mut all = vec![0f32; count * n];
                comm.all_gather(&send, &mut all)?;
                for (i, value) in all.iter().enumerate() {
                    assert_eq!(*value, (i % count % 13) as f32 + (i / count) as f32);
                }
                comm.barrier()
            })
            .unwrap();
        }
    }
}
