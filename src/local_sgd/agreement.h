#pragma once
// All ranks must have the same model and options before vectors travel without a fingerprint.
#include <vector>

#include "local_sgd/trained_parameters.h"
#include "tutti/comm/communicator.h"
#include "tutti/local_sgd/local_update_options.h"
#include "tutti/sync/named_parameter.h"

namespace tutti::local_sgd {

/// Throws Divergence on every rank, naming the first difference. Every rank must call it.
void agree(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers,
           const LocalUpdateOptions& options, const Communicator& channel);

/// The same for the values of parameters.
void agree_on_values(const TrainedParameters& parameters, const Communicator& channel);

}  // namespace tutti::local_sgd
