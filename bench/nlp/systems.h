#pragma once
// Ways to train BERT on several ranks.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "command/python_peer.h"
#include "nlp/options.h"
#include "nlp/pairs.h"
#include "sync/systems/system.h"
#include "tutti/exported/exported_module.h"

namespace tutti::bench {

/// What all of them work with. It outlives the systems.
struct NlpContext {
  const NlpOptions& options;
  const PairEpochs& epochs;
  const Communicator& communicator;

  std::filesystem::path program() const { return std::filesystem::path(options.folder) / "bert.pt2"; }
};

/// The loss that the program itself computes.
at::Tensor loss_of(const std::shared_ptr<ExportedModule>& model, const Pairs& pairs);

/// tutti, in C++, with the loop of each mode.
std::unique_ptr<System> make_tutti_bert(const NlpContext& context);
/// The loop of C++ without any communication.
std::unique_ptr<System> make_single_process_bert(const NlpContext& context);

/// A system of nlp_peer.py.
struct PythonSystem {
  std::string name;   ///< there
  std::string shown;  ///< in the table
  std::vector<Mode> modes;
  bool tuned = false;        ///< it looks for DDP's bucket cap, which the others of `peer` use too
  bool synchronizes = true;  ///< ranks end with equal parameters
};

std::unique_ptr<System> make_python_bert(const NlpContext& context, PythonPeer& peer, PythonSystem system);

}  // namespace tutti::bench
