#pragma once
#include <memory>
#include <string>

#include "comm/services.h"
#include "tutti/comm/communicator.h"

namespace tutti {

/// A Communicator over `backend`. `name` is unique in the job.
Communicator make_communicator(std::shared_ptr<comm::Backend> backend, const CommunicatorOptions& options,
                               std::string name, comm::Services services = {});

}  // namespace tutti
