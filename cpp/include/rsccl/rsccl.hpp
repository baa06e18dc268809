/// @file
/// All of rsccl but `rsccl/mpi.hpp`, which needs an MPI.

/// @mainpage rsccl for C++
/// Begin with rsccl::Communicator; its calls are those of rsccl::Collectives. rsccl::Group runs calls as one, rsccl::Request is a call
/// that goes on, rsccl::PersistentCall one that runs again and again, rsccl::Config has the settings, rsccl::Error what went wrong. Programs with MPI begin with rsccl::from_mpi.
#pragma once

#include <rsccl/buffer.hpp>
#include <rsccl/communicator.hpp>
#include <rsccl/config.hpp>
#include <rsccl/error.hpp>
#include <rsccl/group.hpp>
#include <rsccl/log.hpp>
#include <rsccl/persistent.hpp>
#include <rsccl/memory_use.hpp>
#include <rsccl/placement.hpp>
#include <rsccl/pool.hpp>
#include <rsccl/request.hpp>
#include <rsccl/store.hpp>
#include <rsccl/types.hpp>
#include <rsccl/unique_id.hpp>
#include <rsccl/version.hpp>
#include <rsccl/view.hpp>
