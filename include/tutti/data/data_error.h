#pragma once
// The exception that dataset readers throw.
#include "tutti/core/error.h"

namespace tutti {

/// A file of training data is missing, damaged, or in another format than expected. The message is one line with the
/// file's name and the reason. No data of the file was returned.
class DataError : public Error {
 public:
  using Error::Error;
};

}  // namespace tutti
