#pragma once
// All ranks must have the same model and options before vectors are sent without a call signature.
#include <vector>

#include "local_sgd/trained_parameters.h"
#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/named_parameter.h"
#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

/// Throws MismatchError on every rank, naming the first difference. Every rank must call it.
void check_agreement(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers,
                     const LocalSgdAlgorithmOptions& options, const Communicator& communicator);

/// The same for the values of parameters.
void check_equal_values(const TrainedParameters& parameters, const Communicator& communicator);

}  // namespace tutti::local_sgd
