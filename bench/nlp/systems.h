#pragma once
// Systems that train BERT on several ranks.
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

/// The inputs of all systems. It outlives the systems.
struct NlpContext {
  const NlpOptions& options;
  const PairEpochs& epochs;
  const Communicator& communicator;

  std::filesystem::path program() const { return std::filesystem::path(options.folder) / "bert.pt2"; }
};

/// The loss that the exported program computes.
at::Tensor loss_of(const std::shared_ptr<ExportedModule>& model, const Pairs& pairs);

/// tutti in C++, with the loop of each mode.
std::unique_ptr<System> make_tutti_bert(const NlpContext& context);
/// The C++ loop without communication.
std::unique_ptr<System> make_single_process_bert(const NlpContext& context);

/// A system of nlp_peer.py.
struct PythonSystem {
  std::string name;   ///< in nlp_peer.py
  std::string shown;  ///< in the table
  std::vector<Mode> modes;
  bool tuned = false;        ///< searches for DDP's bucket cap, which the other systems of `peer` use as well
  bool synchronizes = true;  ///< all ranks have equal parameters at the end
};

std::unique_ptr<System> make_python_bert(const NlpContext& context, PythonPeer& peer, PythonSystem system);

}  // namespace tutti::bench
