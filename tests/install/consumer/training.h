#pragma once

/// Trains a model of one layer for three steps and returns the last loss. It has C linkage, so that Python's ctypes can
/// call it.
extern "C" double consumer_train();
