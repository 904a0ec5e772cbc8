#pragma once
// Synchronization of a model's buffers (BatchNorm's running statistics).

namespace tutti {

/// How an optimizer step synchronizes the buffers of the models that it trains.
enum class BufferSync {
  broadcast,  ///< broadcast from rank 0, as with DistributedDataParallel's broadcast_buffers
  mean,       ///< average floating-point buffers over ranks; broadcast other buffers from rank 0
  none,       ///< each rank keeps its own buffers
};

}  // namespace tutti
