#pragma once
// write_checkpoint() with a file system, and with a name that the caller has reserved.
#include <memory>

#include "checkpoint/reservation.h"
#include "tutti/checkpoint/checkpoint.h"

namespace tutti::checkpoint {

/// As tutti::write_checkpoint(). `reserved`: rank 0's right to write `folder`; null: rank 0 takes it.
void write_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content,
                      const Communicator& communicator, const FileSystem& files,
                      std::shared_ptr<Reservation> reserved = nullptr);

}  // namespace tutti::checkpoint
