#include "sync/parameter_set.h"

#include <iterator>
#include <utility>

#include "sync/model_name.h"

namespace tutti::sync {

ParameterSet::ParameterSet(std::vector<NamedParameter> parameters) {
  std::vector<NamedParameter> sparse;
  for (NamedParameter& parameter : parameters) {
    const bool has_gradient = parameter.tensor.requires_grad();
    (has_gradient ? parameter.sparse ? sparse : trained : frozen).push_back(std::move(parameter));
  }
  slots = static_cast<int>(trained.size());
  trained.insert(trained.end(), std::move_iterator(sparse.begin()), std::move_iterator(sparse.end()));
}

std::string ParameterSet::model_prefix() const {
  const std::string of_trained = models_of(trained);
  return of_trained.empty() ? models_of(frozen) : of_trained;
}

}  // namespace tutti::sync
