"""What the gateway keeps."""

from gateway.models.conversation import StoredConversation as StoredConversation
from gateway.models.objective import Objective as Objective
from gateway.models.objective import ObjectiveAlert as ObjectiveAlert
from gateway.models.objective import ObjectiveHour as ObjectiveHour
from gateway.models.objective import ObjectiveMinute as ObjectiveMinute
from gateway.models.objective import Silence as Silence
from gateway.models.reconcile import EndedSpool as EndedSpool
from gateway.models.reconcile import EngineDrift as EngineDrift
from gateway.models.reconcile import EngineReading as EngineReading
from gateway.models.response import StoredResponse as StoredResponse
