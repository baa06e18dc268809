//! Two processes whose ranks share a GPU, which runs one process at a time: both get the same error, and leave nothing on the GPU.

use crate::gpu::must_pass;

#[test]
fn processes_of_one_gpu() {
    must_pass("1", "gpu_processes::pair::");
}

mod pair {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use rsccl::comm::DeviceStream;
    use rsccl::error::Kind;
    use rsccl::internals::device::cuda;
    use rsccl::{Communicator, Config, Error, ReduceOp, Result, UniqueId};

    use crate::TIMEOUT;

    #[test]
    fn are_refused_alike() {
        if cuda::gpus().is_err() {
            return;
        }
        let id = Communicator::unique_id(&config()).expect("an id");
        let mut command = Command::new(std::env::current_exe().expect("a program"));
        command.args(["gpu_processes::pair::other_rank", "--exact", "--ignored", "--nocapture"]);
        let mut other = command.stdin(Stdio::piped()).spawn().expect("a process");
        let told = other.stdin.take().expect("a pipe").write_all(id.as_bytes());
        let mine = refusal(&id, 0);
        assert!(other.wait().expect("it ends").success() && told.is_ok());
        must_say_so(&mine.expect("rank 0 gets an error"));
    }

    #[test]
    #[ignore = "a rank that `are_refused_alike` starts: alone it is no test"]
    fn other_rank() {
        let mut id = [0; UniqueId::BYTES];
        if std::io::stdin().read_exact(&mut id).is_ok() {
            let id = UniqueId::from_bytes(&id).expect("an id");
            must_say_so(&refusal(&id, 1).expect("rank 1 gets an error"));
        }
    }

    fn config() -> Config {
        Config::default().with_timeout(TIMEOUT).with_socket_interfaces("lo")
    }

    /// The error of a call that both ranks make on GPU 0.
    fn refusal(id: &UniqueId, rank: u32) -> Result<Error> {
        let comm = Communicator::init(id, rank, 2, &config())?;
        let stream = DeviceStream::new(0)?;
        let mut buffer = stream.alloc::<f32>(64)?;
        let called = comm.on(&stream).all_reduce_in_place(buffer.slice_mut(..), ReduceOp::Sum);
        called.map_or_else(Ok, |()| Err(Error::internal("it went through")))
    }

    fn must_say_so(error: &Error) {
        let told = error.message().contains("ranks 0 and 1 are different processes on one device");
        assert!(error.kind() == Kind::InvalidUsage && told, "{error}");
    }
}
