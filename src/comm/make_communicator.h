#pragma once
#include <memory>
#include <string>

#include "comm/channel_parts.h"
#include "tutti/comm/communicator.h"

namespace tutti {

/// A Communicator over `engine`. `name` is unique in the job.
Communicator make_communicator(std::shared_ptr<comm::Engine> engine, const CommunicatorOptions& options,
                               std::string name, comm::ChannelParts parts = {});

}  // namespace tutti
