#pragma once
#include <memory>
#include <string>

#include "comm/services.h"
#include "tutti/comm/communicator.h"

namespace tutti {

/// Makes a Communicator over `backend`. `name` must be unique in the job.
Communicator make_communicator(std::shared_ptr<comm::Backend> backend, const CommunicatorOptions& options,
                               std::string name, comm::Services services = {});

}  // namespace tutti
