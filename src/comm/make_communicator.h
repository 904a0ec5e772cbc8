#pragma once
#include <memory>
#include <string>

#include "flight/recorder.h"
#include "tutti/comm/communicator.h"

namespace tutti {

/// A Communicator over `engine`. `name` is unique in the job. `recorder` writes down its operations, and those of
/// communicators made from it; null: nobody does. Without `mail` there are no messages from rank to rank.
Communicator make_communicator(std::shared_ptr<comm::Engine> engine, const CommunicatorOptions& options,
                               std::string name, std::shared_ptr<flight::Recorder> recorder = nullptr,
                               std::shared_ptr<comm::Mail> mail = nullptr);

}  // namespace tutti
