#pragma once
// How the buffers of a model (BatchNorm's running statistics) stay equal on all ranks.

namespace tutti {

/// What an optimizer step does with the buffers of the models that it trains.
enum class BufferSync {
  broadcast,  ///< all ranks get those of rank 0, as DistributedDataParallel's broadcast_buffers
  mean,       ///< floating-point buffers become the mean over ranks, the others those of rank 0
  none,       ///< each rank keeps its own
};

}  // namespace tutti
