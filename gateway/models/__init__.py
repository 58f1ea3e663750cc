"""What the gateway keeps."""

from gateway.models.conversation import StoredConversation as StoredConversation
from gateway.models.reconcile import EndedSpool as EndedSpool
from gateway.models.reconcile import EngineDrift as EngineDrift
from gateway.models.reconcile import EngineReading as EngineReading
from gateway.models.response import StoredResponse as StoredResponse
