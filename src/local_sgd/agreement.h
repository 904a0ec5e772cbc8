#pragma once
// Checks that all ranks have the same model and options. Afterwards vectors are sent without a call signature.
#include <vector>

#include "local_sgd/trained_parameters.h"
#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/named_parameter.h"
#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

/// Collective. Throws MismatchError with the first difference, on every rank.
void check_agreement(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers,
                     const LocalSgdAlgorithmOptions& options, const Communicator& communicator);

/// Collective. Throws MismatchError, on every rank, if the values of the parameters differ.
void check_equal_values(const TrainedParameters& parameters, const Communicator& communicator);

}  // namespace tutti::local_sgd
