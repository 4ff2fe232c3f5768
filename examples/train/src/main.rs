//! Trains a network that reads digits: one process alone, or one of several under a launcher.
//!
//! ```text
//! cargo run --release                                                   alone
//! ferroccl run -n 4 -- target/release/train                             4 processes
//! ```

use std::error::Error;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;

use candle_core::{D, DType, Var};
use candle_nn::{AdamW, Optimizer, loss};
use clap::Parser;
use ferroccl::config::Config;
use ferroccl::launcher::RankEnv;
use ferroccl::{CommConfig, Communicator, Device, ReduceOp, Stream};
use ferroccl_train::digits::{Digits, shuffled};
use ferroccl_train::gradients::GradientSync;
use ferroccl_train::host_memory::buffer_of;
use ferroccl_train::network::Network;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Train a network that reads digits, on one process or several
#[derive(Parser)]
struct Args {
    /// Times that all images are seen
    #[arg(long, default_value_t = 3)]
    epochs: usize,
    /// Images to train with
    #[arg(long, default_value_t = 2048)]
    images: usize,
    /// Images of a step, of all ranks together
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Parts of a batch: a rank computes one after the other those that are its own. With as many parts as there are ranks in the largest
    /// job, and --deterministic, one process computes the same bits as that job
    #[arg(long, default_value_t = 4)]
    parts: usize,
    /// The step width
    #[arg(long, default_value_t = 3e-3)]
    learning_rate: f64,
    /// Sum in the order of the ranks, whatever the size
    #[arg(long)]
    deterministic: bool,
    /// KiB of gradients that are summed together
    #[arg(long, default_value_t = 64)]
    bucket: usize,
}

fn main() -> ExitCode {
    match train(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("train: {error}");
            ExitCode::FAILURE
        }
    }
}

/// This process's communicator.
fn communicator(device: &Device, deterministic: bool) -> Result<Communicator> {
    let mut config = CommConfig::default();
    // Without the flag it is as FERROCCL_DETERMINISTIC says.
    config.deterministic = deterministic.then_some(true);
    Ok(match RankEnv::from_env()? {
        Some(env) => {
            let id = env.unique_id(&Config::from_env()?)?;
            Communicator::init_rank_with(device, env.world_size, &id, env.rank, &config)?
        }
        None => Communicator::init_all_with(device, 1, &config)?.remove(0),
    })
}

fn train(args: &Args) -> Result<()> {
    let device = Device::cpu();
    let comm = Arc::new(communicator(&device, args.deterministic)?);
    let (rank, ranks) = (comm.rank() as usize, comm.world_size() as usize);
    let divides = args.parts.is_multiple_of(ranks) && args.batch.is_multiple_of(args.parts);
    if !divides || args.batch == 0 || args.images < args.batch {
        let counts =
            format!("{} images, {} a batch, {} parts", args.images, args.batch, args.parts);
        return Err(format!("{counts}: not to be divided among {ranks} ranks").into());
    }
    let mine = args.parts / ranks * rank..args.parts / ranks * (rank + 1);

    let network = Network::zeroed()?;
    if rank == 0 {
        network.draw(1)?;
    }
    let stream = device.stream()?;
    broadcast(&comm, &network.parameters(), &stream)?;

    let bucket_bytes = args.bucket << 10;
    let sync_stream = device.stream()?;
    let sync = GradientSync::new(
        Arc::clone(&comm),
        sync_stream,
        network.parameters(),
        bucket_bytes,
        mine.len(),
    );
    let mut optimizer = AdamW::new_lr(network.parameters(), args.learning_rate)?;
    let digits = Digits::drawn();
    for epoch in 1..=args.epochs {
        // Of each part of its own the loss of all steps.
        let mut losses = vec![0.0; mine.len()];
        for batch in shuffled(args.images, epoch).chunks_exact(args.batch) {
            let parts = batch.chunks(args.batch / args.parts);
            for (part, loss_sum) in parts.skip(mine.start).zip(&mut losses) {
                let (images, classes) = digits.batch(part)?;
                let scores = network.forward(&images, Some(&sync))?;
                let loss = (loss::cross_entropy(&scores, &classes)? / args.parts as f64)?;
                // The sums over the ranks begin in here, as soon as there are gradients.
                loss.backward()?;
                *loss_sum += loss.to_scalar::<f32>()?;
            }
            optimizer.step(&sync.finish()?)?;
        }
        let loss: f32 = losses.iter().sum::<f32>() / (args.images / args.batch) as f32;
        // What follows the images to train with.
        let unseen = args.images..args.images + args.images / 4;
        let (right, asked) = read(&network, &digits, unseen, rank, ranks)?;
        let totals = device.upload(&[loss, right, asked])?;
        comm.all_reduce(&totals, &totals, ReduceOp::Sum, &stream)?;
        let [loss, right, asked] = totals.to_vec(&stream)?[..] else { unreachable!("three") };
        if rank == 0 {
            println!("epoch {epoch}: loss {loss:.4}, reads {right} of {asked} unseen images right");
        }
    }
    if rank == 0 {
        println!("parameters {:016x}", digest(&network.parameters())?);
    }
    comm.finalize()?;
    Ok(())
}

/// Gives every rank the parameters of rank 0.
fn broadcast(comm: &Communicator, parameters: &[Var], stream: &Stream) -> Result<()> {
    // SAFETY: nobody uses the parameters until the stream has been waited for.
    let buffers = parameters.iter().map(|parameter| unsafe { buffer_of(parameter) });
    let buffers = buffers.collect::<candle_core::Result<Vec<_>>>()?;
    ferroccl::group(|| {
        buffers.iter().try_for_each(|buffer| comm.broadcast(buffer, buffer, 0, stream))
    })?;
    Ok(stream.synchronize()?)
}

/// How many of its share of these images the network reads right, and how many these are.
fn read(
    network: &Network,
    digits: &Digits,
    images: Range<usize>,
    rank: usize,
    ranks: usize,
) -> Result<(f32, f32)> {
    let numbers: Vec<usize> = images.skip(rank).step_by(ranks).collect();
    let (images, classes) = digits.batch(&numbers)?;
    let answers = network.forward(&images, None)?.argmax(D::Minus1)?;
    let right = answers.eq(&classes)?.to_dtype(DType::F32)?.sum_all()?.to_scalar()?;
    Ok((right, numbers.len() as f32))
}

/// A number that differs where a bit of a parameter does.
fn digest(parameters: &[Var]) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for parameter in parameters {
        for value in parameter.flatten_all()?.to_vec1::<f32>()? {
            hasher.write_u32(value.to_bits());
        }
    }
    Ok(hasher.finish())
}
