#pragma once
// The exception of readers.
#include "tutti/core/error.h"

namespace tutti {

/// A file of training data is missing, damaged, or not of the kind that it should be. The message is one line that
/// names the file and says what is wrong. Nothing of the file was used.
class DataError : public Error {
 public:
  using Error::Error;
};

}  // namespace tutti
